"""The settings: their model, the loader of file, environment and flags, and the reader of TOML."""
