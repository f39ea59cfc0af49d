package command

import (
	v1 "github.com/ironvip/ironvip/api/v1"
	"github.com/ironvip/ironvip/vip"
)

// SeeServices is the hint for a service that doesn't exist.
const SeeServices = "run ironvip service list"

// ParseKey reads a service's name from the command line.
func ParseKey(s string) (vip.ServiceKey, error) {
	key, err := vip.ParseServiceKey(s)
	if err != nil {
		return key, &Failure{Code: ExitUsage, Err: err, Hint: "use NAME or NAMESPACE/NAME; run ironvip service list"}
	}
	return key, nil
}

// ExpandKey makes the name of a service that of its key, as the agent has it. No name stays none.
func ExpandKey(name *string) error {
	if *name == "" {
		return nil
	}
	key, err := ParseKey(*name)
	*name = key.String()
	return err
}

// ParseKeys parses every name first, so that an invalid name prevents any action.
func ParseKeys(names []string) ([]vip.ServiceKey, error) {
	keys := make([]vip.ServiceKey, len(names))
	for i, name := range names {
		key, err := ParseKey(name)
		if err != nil {
			return nil, err
		}
		keys[i] = key
	}
	return keys, nil
}

// ForEach reads an answer of the agent for each named service.
func ForEach[T any](names []string, read func(vip.ServiceKey) (T, error)) ([]T, error) {
	keys, err := ParseKeys(names)
	if err != nil {
		return nil, err
	}
	out := make([]T, len(keys))
	for i, key := range keys {
		if out[i], err = read(key); err != nil {
			return nil, NotFound(err, SeeServices)
		}
	}
	return out, nil
}

// NameOf returns the name of a service in the form that commands accept.
func NameOf(namespace, name string) string {
	return vip.ServiceKey{Namespace: namespace, Name: name}.String()
}

// ServiceName is NameOf for a service.
func ServiceName(s v1.Service) string { return NameOf(s.Spec.Namespace, s.Spec.Name) }
