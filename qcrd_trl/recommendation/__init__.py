"""Sequential recommendation: interactions, sequences, models, teachers and full ranking. Knows no trainer."""
