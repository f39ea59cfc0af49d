package output

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Printer writes a command's data and messages. It is not safe for concurrent use.
type Printer struct {
	Out, Err           io.Writer
	Format             Format
	ColorOut, ColorErr bool
}

// View is one result in every format.
type View struct {
	Data  any                    // for JSON and YAML: the API's own document
	Names func() []string        // for Name
	TOML  func() (string, error) // for TOML; nil: no TOML form
	Text  func(wide bool) string // for Table and Wide; nil: no text
}

// ErrNoTOML is the error of a view without a TOML form.
var ErrNoTOML = errors.New("this output has no toml form")

// NamesOf returns the Names of a View for things that each have one name.
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

// Stream writes one of an unlimited series of views. JSON is on one line, so that each line is a
// document. YAML documents follow "---".
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

// People reports whether the format is human-readable.
func (p *Printer) People() bool { return p.Format == Table || p.Format == Wide }

// Paint colors text for Out, if colors are enabled.
func (p *Printer) Paint(s string, style Style) string {
	s = Clean(s)
	if !p.ColorOut {
		return s
	}
	return paint(s, style)
}

// Say writes one line of messages.
func (p *Printer) Say(format string, args ...any) {
	fmt.Fprintln(p.Err, Clean(fmt.Sprintf(format, args...)))
}

// Label writes one line of messages after a colored word: "error: no such pool".
func (p *Printer) Label(word string, style Style, text string) {
	word += ":"
	if p.ColorErr {
		word = paint(word, style)
	}
	fmt.Fprintln(p.Err, word, Clean(text))
}
