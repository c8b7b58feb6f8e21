# Made by: spillway compare zero-infinity greedysnake --why --model gpt-65b --machine rtx4090-12ssd --set ssd.count=4 --batch 16 --gantt docs/pictures/why.svg
# To draw it again: gnuplot gantt_pair.gp, or gnuplot -e "format='png'" gantt_pair.gp
name = "gantt_pair"
data = "gantt_pair.dat"
height = 923
kinds = 8
array colours[8] = ["#56B4E9", "#0072B2", "#000000", "#E69F00", "#009E73", "#606060", "#CC79A7", "#D55E00"]
memories = 4
memory_colour = "#A0A0A0"

# Canvas and style of every picture. Margins, ticks, legend and every other text follow, each at its place.
if (!exists('format')) format = 'svg'
if (!exists('output')) output = name.'.'.format
# A PNG has two pixels for each of the SVG. Its font sizes are points, of which 3 are 4 pixels; those of the SVG are pixels.
if (format eq 'png') {
  set terminal pngcairo enhanced size 1800, 2 * height font 'sans-serif,15' fontscale 1.5 linewidth 2 pointscale 2 rounded
} else {
  set terminal svg enhanced size 900, height font 'sans-serif,15' linewidth 1 rounded
}
set output output
set encoding utf8

black = '#000000'; orange = '#E69F00'; sky = '#56B4E9'; green = '#009E73'; yellow = '#F0E442'
blue = '#0072B2'; vermillion = '#D55E00'; purple = '#CC79A7'; grey = '#606060'

set dashtype 2 (14, 5)
set dashtype 3 (3, 4)
set dashtype 4 (12, 4, 3, 4)
set dashtype 5 (24, 6)
set dashtype 6 (12, 4, 3, 4, 3, 4)
set dashtype 7 (6, 6)
set dashtype 8 (2, 8)

set border 3 linewidth 1.2 linecolor rgb black
set tics nomirror out scale 0.8
set grid xtics ytics linewidth 0.6 linetype 1 dashtype 1 linecolor rgb '#D8D8D8'
unset key

set xrange [0:213.836562]
set yrange [19.6:0.4]
set label "{/:Bold A, zero-infinity: 213.84 s a step, 1 micro-batch of 16}" at first 0, first 1.1 left front font ',13'
set arrow from first 213.836562, first 1.5 to first 213.836562, first 9.5 nohead front linewidth 1 dashtype 7 linecolor rgb black
set label "{/:Bold B, greedysnake: 53.72 s a step, 1 micro-batch of 16}" at first 0, first 11.1 left front font ',13'
set arrow from first 53.7171094, first 11.5 to first 53.7171094, first 19.5 nohead front linewidth 1 dashtype 7 linecolor rgb black
set lmargin at screen 0.31005
set rmargin at screen 0.97333
set tmargin at screen 0.85867
set bmargin at screen 0.07644
set ytics ("GPU compute" 2, "PCIe to the GPU" 3, "PCIe from the GPU" 4, "SSD reads" 5, "SSD writes" 6, "CPU optimizer" 7, "GPU memory: 9.30 GB of 24.10 GB" 8, "host memory: 40.72 GB of 766.91 GB" 9, "GPU compute" 12, "PCIe to the GPU" 13, "PCIe from the GPU" 14, "SSD reads" 15, "SSD writes" 16, "CPU optimizer" 17, "GPU memory: 11.20 GB of 24.10 GB" 18, "host memory: 763.69 GB of 766.91 GB" 19) font ',13'
set xtics ("0" 0, "50" 50, "100" 100, "150" 150, "200" 200) font ',13'
set object rectangle from screen 0.01556, screen 0.90994 to screen 0.03333, screen 0.89694 fillcolor rgb '#56B4E9' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.12008, screen 0.90994 to screen 0.13786, screen 0.89694 fillcolor rgb '#0072B2' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.23907, screen 0.90994 to screen 0.25684, screen 0.89694 fillcolor rgb '#000000' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.41489, screen 0.90994 to screen 0.43266, screen 0.89694 fillcolor rgb '#E69F00' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.53195, screen 0.90994 to screen 0.54973, screen 0.89694 fillcolor rgb '#009E73' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.69779, screen 0.90994 to screen 0.71557, screen 0.89694 fillcolor rgb '#606060' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.86434, screen 0.90994 to screen 0.88211, screen 0.89694 fillcolor rgb '#CC79A7' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.01556, screen 0.88876 to screen 0.03333, screen 0.87576 fillcolor rgb '#D55E00' fillstyle solid 1 border rgb black linewidth 0.6
set object rectangle from screen 0.13481, screen 0.88876 to screen 0.15259, screen 0.87576 fillcolor rgb '#A0A0A0' fillstyle solid 1 border rgb black linewidth 0.6
set label "{/:Bold gpt-65b, one step of each}" at screen 0.01556, screen 0.97240 left font ',17'
set label "rtx4090-12ssd, batch 16, sequence 1024, bf16; set by hand: ssd.count=4; A is zero-infinity; B is" at screen 0.01556, screen 0.94902 left font ',12'
set label "greedysnake:optimizer\\_ssd=0.22,checkpoints\\_ssd=0,parameters\\_ssd=0" at screen 0.01556, screen 0.93147 left font ',12'
set label "forward" at screen 0.04000, screen 0.90344 left font ',13'
set label "backward" at screen 0.14452, screen 0.90344 left font ',13'
set label "embedding, head" at screen 0.26351, screen 0.90344 left font ',13'
set label "optimizer" at screen 0.43933, screen 0.90344 left font ',13'
set label "copy to the GPU" at screen 0.55639, screen 0.90344 left font ',13'
set label "copy to the host" at screen 0.72224, screen 0.90344 left font ',13'
set label "SSD read" at screen 0.88878, screen 0.90344 left font ',13'
set label "SSD write" at screen 0.04000, screen 0.88226 left font ',13'
set label "memory in use" at screen 0.15926, screen 0.88226 left font ',13'
set label "time in the step (s)" at screen 0.64169, screen 0.02551 center font ',14'

# One steady step of two plans above each other, on one axis of time. Blocks of boxes: row, start, end; of memory: time, bottom,
# top of what is in use.
set ytics scale 0
set grid noytics
set border 1
set style fill solid 1 noborder
plot for [k = 1:kinds] data index k - 1 using 2:1:2:3:($1 - 0.38):($1 + 0.38) with boxxyerror \
         linewidth 0.2 fillcolor rgb colours[k], \
     for [m = 1:memories] data index kinds + m - 1 using 1:2:3 with filledcurves fillcolor rgb memory_colour
