"""What each exercise asks for; `rubrics.NAME` belongs to chapter NAME."""
