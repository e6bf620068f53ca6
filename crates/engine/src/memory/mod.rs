//! Memory pools and accounting.
