"""Who continues tokens: inference engines behind one method."""
