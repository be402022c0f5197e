"""Measuring tinyml beside its peers. README.md says how."""
