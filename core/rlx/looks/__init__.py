"""What a person looks at: comparisons, reports, warnings, and what each metric means."""
