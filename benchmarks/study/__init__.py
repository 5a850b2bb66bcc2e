"""The study of docs/study.md: recorded on a GPU host, analysed and written anywhere."""
