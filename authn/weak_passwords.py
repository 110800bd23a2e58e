"""Passwords that are tried first: the common ones, runs of characters, common words with a year behind, one's own name.

What people take most is a list that Django keeps (common-passwords.md); what is tried at gateways, and the forms in
which guessing programs vary a word, are here. The answer is yes or no and costs milliseconds, whatever the password is;
estimates of strength take seconds for some (decision 0029).
"""

import gzip
from itertools import pairwise
from pathlib import Path

_LIST = Path(__file__).with_name("common-passwords.txt.gz")
_AROUND_GATEWAYS = """
    passw0rt contraseña rootroot root1234 toor1234 changeit default1 default123 secretsecret guest123 raspberrypi
    homeassistant mosquitto gateway123
"""
_TRIED_TOO = frozenset(_AROUND_GATEWAYS.split())
_WORDS = """
    password passwort passwd pass welcome willkommen summer winter spring autumn fall sommer herbst admin administrator
    root user guest test qwerty qwertz azerty letmein changeme default secret login master hello monday friday
    january february march april may june july august september october november december company gateway
    raspberry raspberrypi homeassistant mosquitto skep device sensor iloveyou sunshine princess dragon monkey football
"""
_STEMS = frozenset(_WORDS.split())
_SPELLED = str.maketrans("@0134578$!|", "aoleastbsil")
"""How letters are written as digits and signs by people, and by every program that guesses."""
_MOST_AROUND = 5
"""Digits and signs around a word that make it no harder: a year and an exclamation mark."""


def is_tried_first(password: str) -> bool:
    """Whether whoever guesses comes to it soon, whoever it is of."""
    plain = password.strip().lower()
    return plain in _TRIED_TOO or _is_a_run(plain) or _is_a_word_with_a_tail(plain) or _is_common(plain)


def is_the_name(password: str, account: str) -> bool:
    """Whether it is hardly more than the name of its account."""
    rest = password.strip().lower().replace(account, "")
    return len(account) >= 3 and rest in {"", "1", "12", "123", "1234", "!", "password"}


def _is_common(text: str) -> bool:
    # Read each time: passwords are set once in a while, and the words would lie in memory for good.
    lines = b"\n" + gzip.decompress(_LIST.read_bytes())
    return any(f"\n{spelled}\n".encode() in lines for spelled in {text, text.translate(_SPELLED)})


def _is_a_word_with_a_tail(text: str) -> bool:
    """Whether it is a word that everybody takes, with a few digits and signs behind it or in front: Summer2026!,
    P@ssw0rd1."""
    for word in {text, text.translate(_SPELLED)}:
        core = word.strip("0123456789!?.,;:-_+*#$%&/()=@ ")
        if core in _STEMS and len(text) - len(core) <= _MOST_AROUND:
            return True
    # The signs at the end are those of the text itself: in `passw0rd1!` only the one in the word is a letter.
    ends = len(text.rstrip("0123456789!?.,;:-_+*#$%&/()=@ "))
    return text[:ends].translate(_SPELLED) in _STEMS and len(text) - ends <= _MOST_AROUND


def _is_a_run(text: str) -> bool:
    """Whether all characters are equal, or each follows its neighbour (12345678, hgfedcba), or two take turns."""
    steps = {ord(later) - ord(earlier) for earlier, later in pairwise(text)}
    return (len(steps) <= 1 and steps <= {-1, 0, 1}) or len(set(text)) <= 2
