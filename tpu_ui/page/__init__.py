"""The page: a Gradio app over a queue of jobs. Needs no torch."""
