"""Models of the experiments; plain `nn.Module`s that know nothing of federations."""
