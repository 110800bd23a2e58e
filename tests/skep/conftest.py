"""Commands, run in this process."""

import pytest

from skep.cli import main
from tests.skep.commands import Said, Skep


@pytest.fixture
def skep(capsys: pytest.CaptureFixture[str]) -> Skep:
    """Runs `skep` with these arguments; a traceback fails the test."""

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(arguments)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(code, said.out, said.err)

    return run
