"""What is trained: encoders and heads, language models, packed rows, dropout, losses."""
