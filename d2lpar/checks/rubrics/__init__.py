"""What each exercise asks for: its cases, its requirements and the usual mistakes."""
