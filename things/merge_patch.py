"""JSON Merge Patch (RFC 7396): applied, and made from two documents."""

from typing import Any


def merged(target: Any, patch: Any) -> Any:
    """`target` changed by `patch`: members are merged, null removes, everything else replaces. Neither is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def difference(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The patch that makes `new` of `old`. A member that is null in `new` cannot be expressed and is left out."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name not in old:
            if value is not None:
                patch[name] = value
        elif isinstance(value, dict) and isinstance(old[name], dict):
            inner = difference(old[name], value)
            if inner:
                patch[name] = inner
        elif not _same(old[name], value):
            patch[name] = value
    return patch


def _same(old: Any, new: Any) -> bool:
    # Python takes True for 1 and False for 0; JSON does not.
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(value, new[name]) for name, value in old.items())
    return bool(old == new)
