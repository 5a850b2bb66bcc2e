"""The pages, each a script that Streamlit runs at every look; nobody imports them."""
