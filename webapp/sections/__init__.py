"""Parts of pages that are pages in little: several components under headings of their own."""
