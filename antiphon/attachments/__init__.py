"""Process files and images in requests: fetch them, check them, and extract their text. Nothing is
stored."""
