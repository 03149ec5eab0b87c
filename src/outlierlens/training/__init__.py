"""What all trainings share, and watching them; pre-training and fine-tuning."""
