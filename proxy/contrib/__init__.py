"""Interfaces of other programs over this package: REPLOID's context functions, and the reader of std::slop's files."""
