"""What hides one of skep's own packages from Python, said in one sentence.

skep consists of several top-level packages with common names. A folder or a distribution of the same name that comes
first on Python's path would be imported instead, and fail far from its cause. Only the standard library is used here.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("things", "gateway", "runtime", "bindings", "twin", "authn", "authz", "spark")


def check_packages() -> None:
    """Raises ImportError if a package that skep needs would come from somewhere else than beside skep itself."""
    here = Path(__file__).parent.parent
    for name in PACKAGES:
        found = _found(name)
        if found is not None and found != here / name and found.resolve() != (here / name).resolve():
            raise ImportError(
                f"skep needs its own package {name!r} from {here / name}, but Python finds {found} first: rename or "
                f"move that, or uninstall the distribution it came with; if it lies beside the script that is run, "
                f"`python -P` passes over it",
                name=name,
                path=str(found),
            )


def _found(name: str) -> Path | None:
    """The folder or file that `import name` takes; None if there is none."""
    module = sys.modules.get(name)
    if module is not None:
        places = [*getattr(module, "__path__", ())]
        return Path(places[0] if places else getattr(module, "__file__", None) or name)
    spec = find_spec(name)
    if spec is None:
        return None
    return Path(next(iter(spec.submodule_search_locations or ()), spec.origin or name))
