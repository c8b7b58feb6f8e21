# One steady step of two plans above each other, on one axis of time. Blocks of boxes: row, start, end; of memory: time, bottom,
# top of what is in use.
set ytics scale 0
set grid noytics
set border 1
set style fill solid 1 noborder
plot for [k = 1:kinds] data index k - 1 using 2:1:2:3:($1 - 0.38):($1 + 0.38) with boxxyerror \
         linewidth 0.2 fillcolor rgb colours[k], \
     for [m = 1:memories] data index kinds + m - 1 using 1:2:3 with filledcurves fillcolor rgb memory_colour
# gnuplot asks for sharp edges, which leaves out boxes that are narrower than a pixel; they are to be pale.
unset output
if (format eq 'svg' && strstrt(output, "'") == 0) system("sed -i \"s/ shape-rendering='crispEdges'//\" '".output."'")
