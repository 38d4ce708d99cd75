"""What authors of chapters type: outputs, kept code, numbers in the text, stamps."""
