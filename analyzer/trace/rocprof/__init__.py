"""Results of rocprofv3, as databases (rocpd) and as JSON: `database` and `json_file` read them."""
