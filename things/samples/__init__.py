"""Thing Descriptions to try things out with, as they would come from devices."""

from importlib.resources import files


def sample_td(name: str) -> bytes:
    """The text of `{name}.td.json`."""
    return files(__name__).joinpath(f"{name}.td.json").read_bytes()
