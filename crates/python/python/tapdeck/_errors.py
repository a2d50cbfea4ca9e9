"""What can go wrong: exceptions, and the warning that an answer is not whole."""

import warnings


class TapdeckError(Exception):
    """What every exception of this module is."""


class StoreError(TapdeckError, OSError):
    """The store, or the capture files, cannot be read."""


class StoreNotFoundError(StoreError, FileNotFoundError):
    """There is nothing at the path."""


class QuestionError(TapdeckError, ValueError):
    """The question makes no sense."""


class FilterError(QuestionError):
    """The expression is no filter: libpcap refuses it, as `tcpdump -r` would."""


class TimeError(QuestionError):
    """What should be a time is none, or `after` is later than `before`."""


class UnsupportedError(TapdeckError, NotImplementedError):
    """What is asked for needs the program `tapdeck-remote`, which is not there."""


class AlreadyReadError(TapdeckError, RuntimeError):
    """The answer was read to its end. Each packet is given once: ask again."""


class IncompleteWarning(UserWarning):
    """An answer is not whole: the recorder dropped packets, or what it had is damaged or gone."""


# Each answer that is not whole says so, and not the first alone. Filters of the user come first.
warnings.simplefilter("always", IncompleteWarning, append=True)
