"""The report of a run: one HTML page that needs neither other files nor the network.

collect                  where the page's numbers come from: a `Result` (maya/results) -> `Content`
activities, stream_events, top_tables, settings_tables
                         parts of it: labels of kernels, streams of a rank, tables
content                  the fields of `Content`, which the scripts in page/ read
write                    `Content` and the texts, styles and scripts in page/ -> an HTML file
"""
