"""Thing Descriptions as they come: text in UTF-8, which the runtime reads and keeps verbatim."""

from things.errors import Malformed


def read_td(payload: bytes) -> str:
    """The text of a description; raises Malformed."""
    try:
        return payload.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        raise Malformed("a Thing Description is UTF-8") from error
