package spec

import (
	"encoding/json"

	"github.com/ironvip/ironvip/vip"
	"github.com/ironvip/ironvip/vip/spec/strict"
)

// Patch is a change of a service: a JSON merge patch (RFC 7396) of its JSON. An object is merged
// with the value that the service has, null removes the value, which means the default, and any
// other value replaces it. A list is replaced as a whole.
type Patch map[string]any

// DecodePatch reads a patch. The patch is nil if data is not a JSON object.
func DecodePatch(data []byte) (Patch, []vip.Problem) { return strict.ParseJSON(data) }

// Apply returns the service s with the patch. It reports unknown keys and values of a wrong type, as
// DecodeJSON does, also of keys that the patch sets to null. It changes neither s nor the patch.
func (p Patch) Apply(s Service) (Service, []vip.Problem) {
	b, err := json.Marshal(s)
	if err != nil {
		panic("a service can't be written as JSON: " + err.Error())
	}
	tree, problems := strict.ParseJSON(b)
	strict.Merge(tree, p)
	var out Service
	problems = append(problems, strict.Decode(tree, &out, "")...)
	for i := range problems {
		problems[i].Service = s.Title()
	}
	return out, problems
}

// SetKey sets the name and the namespace of a spec that may omit them. It reports those that differ
// from key.
func (s *Service) SetKey(key vip.ServiceKey) (problems []vip.Problem) {
	for _, f := range []struct {
		field, want string
		in          *string
	}{{"namespace", key.Namespace, &s.Namespace}, {"name", key.Name, &s.Name}} {
		if *f.in != "" && *f.in != f.want {
			problems = append(problems, vip.Problem{Code: vip.CodeInvalid, Service: key.String(), Field: f.field,
				Message: "\"" + *f.in + "\" differs from the path's \"" + f.want + "\"", Hint: "omit it in the body"})
		}
		*f.in = f.want
	}
	return problems
}
