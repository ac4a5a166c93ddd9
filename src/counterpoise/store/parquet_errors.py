"""What pyarrow raises for a damaged parquet file."""

from __future__ import annotations

import pyarrow as pa

# Beside its own errors: ValueError for names of columns that are not UTF-8, TypeError for types
# that it does not know, LookupError for missing columns.
PARQUET_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, LookupError)
