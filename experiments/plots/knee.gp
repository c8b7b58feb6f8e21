# Throughput over a resource, a panel for each. The first blocks of data are the curves (value, tokens/s), the others the
# machine as it is.
unset title
unset key
set multiplot layout panel_rows, panel_columns title title_text
set rmargin -1
set lmargin 10
set bmargin 4
set tmargin 3
set ylabel 'throughput (tokens/s)' offset 0.5, 0
set yrange [0:most * 1.08]
do for [i = 1:panels] {
  set title panel_titles[i] font ',13' offset 0, -0.4
  set xlabel x_labels[i]
  if (strlen(logarithmic[i]) > 0) { set logscale x } else { unset logscale x }
  eval x_ticks[i]
  eval x_ranges[i]
  unset arrow
  eval marks[i]
  plot data index i - 1 using 1:2 with linespoints linetype 1 notitle, \
       data index panels + i - 1 using 1:2 with points pointtype 6 pointsize 2.2 linewidth 2 linecolor rgb black notitle
}
unset multiplot
