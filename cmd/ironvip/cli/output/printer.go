package output

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Printer writes a command's data and its talk. It is not for concurrent use.
type Printer struct {
	Out, Err           io.Writer
	Format             Format
	ColorOut, ColorErr bool
}

// View is one answer in all the shapes it can be asked for.
type View struct {
	Data  any                    // what JSON and YAML show: the API's own document
	Names func() []string        // what Name shows
	TOML  func() (string, error) // what TOML shows; nil has no TOML form
	Text  func(wide bool) string // what Table and Wide show; nil is nothing
}

// ErrNoTOML is the error of a view without a TOML form.
var ErrNoTOML = errors.New("this output has no toml form")

// NamesOf is a View's Names of things that each have one.
func NamesOf[T any](things []T, name func(T) string) func() []string {
	return func() []string {
		names := make([]string, len(things))
		for i := range things {
			names[i] = name(things[i])
		}
		return names
	}
}

// Show writes the view in the printer's format.
func (p *Printer) Show(v View) error {
	switch p.Format {
	case JSON:
		return writeJSON(p.Out, v.Data)
	case YAML:
		return writeYAML(p.Out, v.Data)
	case Name:
		var b strings.Builder
		for _, name := range v.Names() {
			b.WriteString(Clean(name) + "\n")
		}
		_, err := io.WriteString(p.Out, b.String())
		return err
	}
	if p.Format == TOML {
		if v.TOML == nil {
			return ErrNoTOML
		}
		text, err := v.TOML()
		if err == nil {
			_, err = io.WriteString(p.Out, text)
		}
		return err
	}
	if v.Text == nil {
		return nil
	}
	_, err := io.WriteString(p.Out, v.Text(p.Format == Wide))
	return err
}

// Stream writes one of a series of views that has no known end: JSON without
// line breaks, so that each line is a document; YAML documents after "---".
func (p *Printer) Stream(v View) error {
	switch p.Format {
	case JSON:
		return writeJSONLine(p.Out, v.Data)
	case YAML:
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return err
		}
	}
	return p.Show(v)
}

// People reports whether the format is one for people to read.
func (p *Printer) People() bool { return p.Format == Table || p.Format == Wide }

// Paint colours text that goes to Out, where colours are wanted.
func (p *Printer) Paint(s string, style Style) string {
	s = Clean(s)
	if !p.ColorOut {
		return s
	}
	return paint(s, style)
}

// Say writes one line of talk.
func (p *Printer) Say(format string, args ...any) {
	fmt.Fprintln(p.Err, Clean(fmt.Sprintf(format, args...)))
}

// Label writes one line of talk after a coloured word: "error: no such pool".
func (p *Printer) Label(word string, style Style, text string) {
	word += ":"
	if p.ColorErr {
		word = paint(word, style)
	}
	fmt.Fprintln(p.Err, word, Clean(text))
}
