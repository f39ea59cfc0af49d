package api

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/ironvip/ironvip/api/server"
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Payload is a body that the handler reads itself, strictly. Huma's reader accepts duplicate keys
// and reports no places. Inputs embed it, so it is exported: huma ignores unexported fields.
type Payload struct {
	RawBody     []byte
	ContentType string `header:"Content-Type" hidden:"true"`
}

// media refuses a body with a content type other than JSON. curl -d sets a form's type for any
// body.
func media(contentType string) *server.Problem {
	if contentType == "" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(contentType)
	switch {
	case err != nil:
	case kind == "application/json", strings.HasSuffix(kind, "+json"), kind == "text/json", kind == "text/plain",
		kind == "application/octet-stream", kind == "application/x-www-form-urlencoded":
		return nil
	}
	return server.Refuse(http.StatusUnsupportedMediaType, v1.CodeUnsupportedMedia, "unsupported content type "+contentType,
		"send JSON with Content-Type: application/json")
}

// decode reads a JSON object into a struct by its toml tags. An empty body counts as an empty
// object.
func (b *Payload) decode(into any) *server.Problem {
	if p := media(b.ContentType); p != nil {
		return p
	}
	if len(strings.TrimSpace(string(b.RawBody))) == 0 {
		return nil
	}
	tree, problems := strict.ParseJSON(b.RawBody)
	if tree == nil {
		return notJSON(problems)
	}
	if problems = append(problems, strict.Decode(tree, into, "")...); len(problems) > 0 {
		return invalid(problems)
	}
	return nil
}

func notJSON(problems []vip.Problem) *server.Problem {
	message := problems[0].Message
	if strings.HasPrefix(message, "not ") {
		message = "is " + message
	}
	return server.BadRequest("the body "+message, "send one JSON object", problems...)
}

// invalid is the problem of a body that is JSON but not a valid object. The detail is the
// first error and the number of the others.
func invalid(problems []vip.Problem) *server.Problem {
	detail, hint := problems[0].Error(), problems[0].Hint
	if more := len(problems) - 1; more > 0 {
		detail, hint = fmt.Sprintf("%s, and %d more", detail, more), "see errors"
	}
	return server.Refuse(http.StatusUnprocessableEntity, v1.CodeInvalidService, detail, hint, problems...)
}
