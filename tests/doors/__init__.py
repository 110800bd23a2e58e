"""The door contract: whatever can be published, asked or refused is so at every door, with the same rows and words."""
