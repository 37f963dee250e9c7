"""Models of the experiments: plain `nn.Module`s, which do not depend on the rest of the package."""
