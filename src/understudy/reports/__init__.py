"""Pictures, pages and videos of runs, repertoires and evaluations."""
