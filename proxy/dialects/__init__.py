"""Wire formats, one folder each: their requests, their rules and their answers. Pure."""
