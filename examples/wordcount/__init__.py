"""The main job: word count over a folder of text files, each line tracked, with faults injected and replayed."""
