"""Networks of the papers: recurrent ones, a ResNet, an autoencoder, transformers; one idea a file."""
