"""Scaling studies: one script at several world sizes (`maya scale`, `maya.scale`; docs/scale.md).

study               `scale` runs the sizes -> `ScaleStudy`
size_commands       checks everything before the first run; the words of maya-torchrun for each size
argument_template   "{nproc//8}" in arguments
study_folder        scale.json: settings and rows, and which sizes are finished
scale_row           one size: figures of its summary.json
efficiency, growth  strong or weak, how efficient, what grows
failure_reason      why a size has no figures
study_text          lines and CSV; scale_chart, scale_page: SVG and HTML; study_progress: while it runs
"""
