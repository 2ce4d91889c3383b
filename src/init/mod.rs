//! Being PID 1.
