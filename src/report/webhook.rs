//! The final report: one POST to `report.url` when the run ends.
//! (room for the HTTP sink; see run/)
