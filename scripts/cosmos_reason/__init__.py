"""The library behind the commands in scripts/.
Its floors are listed in CONTRIBUTING.md; imports go downwards only."""
