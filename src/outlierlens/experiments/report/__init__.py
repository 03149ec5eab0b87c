"""`report`: what the main job is asked, and the command."""
