"""Which tokens and dimensions to leave out of hidden states before an autoencoder or a steering vector is made of them."""
