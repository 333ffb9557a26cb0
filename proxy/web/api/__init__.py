"""The admin API: one file a subject, each with its routes and the shapes of what they take and give."""
