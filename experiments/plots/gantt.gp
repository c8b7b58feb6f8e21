# One steady step: a row a lane, boxes where it is busy. Many tasks whose gaps are too narrow to draw are boxes as wide as they
# are busy, side by side. Columns: row, start, end.
set ytics scale 0
set grid noytics
set border 1
set style fill solid 1 noborder
plot for [k = 1:kinds] data index k - 1 using 2:1:2:3:($1 - 0.38):($1 + 0.38) with boxxyerror \
         linewidth 0.2 fillcolor rgb colours[k]
# gnuplot asks for sharp edges, which leaves out boxes that are narrower than a pixel; they are to be pale.
unset output
if (format eq 'svg' && strstrt(output, "'") == 0) system("sed -i \"s/ shape-rendering='crispEdges'//\" '".output."'")
