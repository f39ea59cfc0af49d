package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ironvip/ironvip/api/request"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/test/expect"
	"github.com/ironvip/ironvip/test/must"
)

// The examples of docs/api.md work in sequence, and every route has one. The status of an example
// that should fail follows a "#".
func TestExamplesOfTheManual(t *testing.T) {
	text := must.Get(os.ReadFile("../docs/api.md"))(t)
	r := newRig(t)
	used := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllSubmatch(text, -1) {
		for _, command := range curls(t, string(block[1])) {
			got, err := command.run(t, r)
			if err != nil {
				t.Errorf("%s: %v", command.text, err)
				continue
			}
			if got.StatusCode != command.want && (command.want != 0 || got.StatusCode >= 300) {
				t.Errorf("%s: %s\n%s", command.text, got.Status, got.body)
			}
			for _, route := range r.server.http.Engine.Routes() {
				pattern := regexp.MustCompile(`:[a-z]+`).ReplaceAllString(strings.ReplaceAll(route.Path, `\:`, "COLON"), `[^/]+`)
				if regexp.MustCompile("^" + strings.ReplaceAll(pattern, "COLON", ":") + "$").MatchString(got.Request.URL.Path) {
					used[got.Request.Method+" "+route.Path] = true
				}
			}
		}
	}
	for _, route := range r.server.http.Engine.Routes() {
		if !used[route.Method+" "+route.Path] {
			t.Errorf("no example of %s %s", route.Method, route.Path)
		}
	}
}

// curl is one command line.
type curl struct {
	text    string
	method  string
	url     string
	headers []string
	body    string
	kind    string // the content type that curl sets
	want    int    // 0: any success
}

// curls parses command lines like a shell, as far as the manual needs: words, single quotes,
// comments.
func curls(t *testing.T, block string) (out []curl) {
	var words []string
	var word strings.Builder
	inWord, quoted := false, false
	end := func() {
		if inWord {
			words = append(words, word.String())
		}
		word.Reset()
		inWord = false
	}
	flush := func(comment string) {
		end()
		if len(words) == 0 {
			return
		}
		c := curl{text: strings.Join(words, " "), method: "GET"}
		c.want, _ = strconv.Atoi(strings.TrimSpace(comment))
		expect.Equal(t, words[0], "curl", "not a curl: %s", c.text)
		for i := 1; i < len(words); i++ {
			switch words[i] {
			case "-X", "-H", "-d", "--json":
				i++
				switch words[i-1] {
				case "-X":
					c.method = words[i]
				case "-H":
					c.headers = append(c.headers, words[i])
				default:
					c.body, c.kind = words[i], "application/x-www-form-urlencoded"
					if words[i-1] == "--json" {
						c.kind = "application/json"
					}
				}
			case "-N":
			default:
				c.url = words[i]
			}
		}
		out, words = append(out, c), nil
	}
	for i := 0; i < len(block); i++ {
		switch c := block[i]; {
		case c == '\'':
			inWord, quoted = true, !quoted
		case quoted:
			word.WriteByte(c)
		case c == '#':
			line, _, _ := strings.Cut(block[i+1:], "\n")
			flush(line)
			i += len(line)
		case c == '\n':
			flush("")
		case c == ' ':
			end()
		default:
			inWord = true
			word.WriteByte(c)
		}
	}
	return out
}

func (c curl) run(t *testing.T, r *rig) (answer, error) {
	path, ok := strings.CutPrefix(c.url, "http://127.0.0.1:7480")
	if !ok {
		return answer{}, fmt.Errorf("%q is not the agent", c.url)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, c.method, r.web.URL+path, strings.NewReader(c.body))
	if err != nil {
		return answer{}, err
	}
	if c.body != "" {
		req.Header.Set("Content-Type", c.kind)
	}
	stream := strings.HasPrefix(path, v1.PathWatchServices) || strings.HasPrefix(path, v1.PathTop)
	for _, h := range c.headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		stream = stream || value == request.Ndjson
	}
	resp, err := r.web.Client().Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if stream { // it is unlimited
		return answer{Response: resp}, nil
	}
	body, err := io.ReadAll(resp.Body)
	return answer{resp, body}, err
}
