"""For users' own tests: a gateway in the test's process, as an agent sees it, and a pytest fixture of it.

`pytest_plugins = ["skep.testing.fixtures"]` in a conftest.py brings the fixture `skep_gateway`.
"""

from skep.testing.gateway import Gateway

__all__ = ["Gateway"]
