"""Its library is not there."""

import a_library_that_is_not_installed  # noqa: F401
