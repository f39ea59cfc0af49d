package output

import (
	"strings"
	"unicode/utf8"
)

// gap separates two columns.
const gap = "  "

// Cell is one value of a table.
type Cell struct {
	Text  string
	Style Style
}

// Grid is a table with aligned columns. The last column is not padded.
type Grid struct {
	Indent string   // before every line
	Header []string // one per column; nil: no header
	Rows   [][]Cell // each as long as Header, or shorter
}

// Row returns cells of plain strings.
func Row(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

// Add appends a row; an empty cell becomes None.
func (g *Grid) Add(cells ...Cell) {
	for i := range cells {
		if cells[i].Text == "" {
			cells[i].Text = None
		}
	}
	g.Rows = append(g.Rows, cells)
}

// Text returns the grid as text. Widths count characters and exclude color codes.
func (g *Grid) Text(color bool) string {
	var widths []int
	measure := func(column int, text string) {
		if column == len(widths) {
			widths = append(widths, 0)
		}
		widths[column] = max(widths[column], utf8.RuneCountInString(Clean(text)))
	}
	for i, h := range g.Header {
		measure(i, h)
	}
	for _, row := range g.Rows {
		for i, c := range row {
			measure(i, c.Text)
		}
	}
	var b strings.Builder
	if g.Header != nil {
		header := Row(g.Header...)
		g.line(&b, header, widths, false)
	}
	for _, row := range g.Rows {
		g.line(&b, row, widths, color)
	}
	return b.String()
}

func (g *Grid) line(b *strings.Builder, row []Cell, widths []int, color bool) {
	last := len(row) - 1
	for last >= 0 && row[last].Text == "" {
		last--
	}
	b.WriteString(g.Indent)
	for i, c := range row[:last+1] {
		text := Clean(c.Text)
		if color {
			b.WriteString(paint(text, c.Style))
		} else {
			b.WriteString(text)
		}
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)) + gap)
		}
	}
	b.WriteByte('\n')
}
